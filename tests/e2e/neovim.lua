-- Opens a file in Neovim with the language server, as a user's configuration would, and writes down what is shown.
-- Arguments: the interpreter, the file, where to write. Works from 0.7 on.
local python, file, out = unpack(vim.fn.json_decode(vim.env.FUSELENS_NEOVIM))
local patience = 240000

local function wait(what, condition)
  if not vim.wait(patience, condition, 50) then
    error(what .. " did not come")
  end
end

local function ask(method, more)
  local where = { textDocument = vim.lsp.util.make_text_document_params() }
  local answers = vim.lsp.buf_request_sync(0, method, vim.tbl_extend("force", where, more or {}), patience)
  for _, answer in pairs(answers or {}) do
    return answer.result
  end
end

local function codes()
  local found = {}
  for _, d in ipairs(vim.diagnostic.get(0)) do
    local code = d.code or (d.user_data and d.user_data.lsp and d.user_data.lsp.code)
    table.insert(found, { code = code, line = d.lnum, column = d.col, message = d.message, severity = d.severity })
  end
  return found
end

local seen = {}
local ok, failure = pcall(function()
  vim.cmd("edit " .. vim.fn.fnameescape(file))
  local client = vim.lsp.start_client({
    name = "fuselens",
    cmd = { python, "-m", "fuselens_server" },
    root_dir = vim.fn.fnamemodify(file, ":h"),
    init_options = { allowedFolders = { vim.fn.fnamemodify(file, ":h") } },
  })
  vim.lsp.buf_attach_client(0, client)
  wait("the first diagnostics", function()  -- what is predicted comes first
    for _, d in ipairs(codes()) do
      if not d.message:match("^likely") then return true end
    end
    return false
  end)
  seen.diagnostics = codes()

  local line = vim.fn.search("x = a") - 1
  seen.hover = ask("textDocument/hover", { position = { line = line, character = 4 } })
  vim.lsp.codelens.refresh()
  wait("code lenses", function() return #vim.lsp.codelens.get(0) > 0 end)
  seen.lenses = vim.lsp.codelens.get(0)

  vim.fn.search("/ (a")
  vim.lsp.buf.implementation()
  wait("the kernel", function() return vim.api.nvim_buf_get_name(0):match("%.cpp$") ~= nil end)
  seen.kernel = { file = vim.api.nvim_buf_get_name(0), line = vim.api.nvim_get_current_line() }
  vim.cmd("edit " .. vim.fn.fnameescape(file))
  seen.signs = vim.fn.sign_getplaced("%", { group = "*" })

  -- the break is edited away and the file saved
  local branch = vim.fn.search("if b.sum() < 0")
  vim.fn.deletebufline("%", branch, branch + 1)
  vim.cmd("write")
  wait("the end of the break", function()
    for _, d in ipairs(codes()) do
      if d.code == "FL101" then return false end
    end
    return true
  end)
  seen.after = codes()

  local run = nil
  vim.lsp.buf_request(0, "workspace/executeCommand", {
    command = "fuselens.server.run", arguments = { vim.uri_from_bufnr(0), "toy" },
  }, function(_, result) run = result or {} end)
  wait("a run", function() return run ~= nil end)
  seen.run = run
  vim.lsp.stop_client(client)
  wait("the server's end", function() return vim.lsp.client_is_stopped(client) end)
end)
seen.failure = not ok and tostring(failure) or nil
vim.fn.writefile({ vim.fn.json_encode(seen) }, out)
vim.cmd("qall!")
