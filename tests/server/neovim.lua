-- What a person sees in Neovim, as JSON. Run with `nvim --headless -u NONE FILE -l`-like: see test_neovim.py.
local out, found = vim.env.FUSELENS_OUT, {}
local client = vim.lsp.start_client({
  name = "fuselens",
  cmd = { vim.env.FUSELENS_PYTHON, "-m", "fuselens_server" },
  root_dir = vim.fn.getcwd(),
})
vim.lsp.buf_attach_client(0, client)

local function ask(method, params)
  local answers = vim.lsp.buf_request_sync(0, method, params, 30000) or {}
  return (answers[client] or {}).result
end

local function wait(what)
  assert(vim.wait(90000, what, 50), "it did not happen")
end

local function main()
  wait(function() return #vim.diagnostic.get(0) > 0 end)
  found.diagnostics = vim.tbl_map(function(d)
    return { code = d.code, line = d.lnum, column = d.col, message = d.message, source = d.source }
  end, vim.diagnostic.get(0))

  vim.lsp.codelens.refresh()
  wait(function()
    local lenses = vim.lsp.codelens.get(0)
    return #lenses > 1 and lenses[1].command ~= nil
  end)
  found.lenses = vim.tbl_map(function(lens) return lens.command.title end, vim.lsp.codelens.get(0))
  found.lens_commands = vim.tbl_map(function(lens) return lens.command.command end, vim.lsp.codelens.get(0))

  vim.fn.search("x = a")
  local hover = ask("textDocument/hover", vim.lsp.util.make_position_params())
  found.hover = hover and hover.contents.value

  vim.fn.search("/ (a")
  vim.lsp.buf.implementation()
  wait(function() return vim.api.nvim_buf_get_name(0):match("%.cpp$") ~= nil end)
  found.kernel = vim.api.nvim_buf_get_name(0)
  found.kernel_line = vim.api.nvim_get_current_line()
  found.kernel_readonly = vim.bo.readonly
end

local ok, problem = xpcall(main, debug.traceback)
if not ok then found.problem = problem end
local file = assert(io.open(out, "w"))
file:write(vim.fn.json_encode(found))
file:close()
vim.cmd("qa!")
