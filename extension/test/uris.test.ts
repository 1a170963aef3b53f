import assert from "node:assert/strict";
import { test } from "node:test";
import { addressKey, parseAddress, queryInEditor, queryOnServer, title, type UriParts } from "../src/documents/uris";

const FILE = "file:///home/ada/my%20models/toy.py";

test("the parts of an address", () => {
  assert.deepEqual(parseAddress(`fuselens://report/toy/graph0/kernel.cpp?file=${encodeURIComponent(FILE)}`), {
    function: "toy",
    graph: "graph0",
    name: "kernel.cpp",
    file: "file:///home/ada/my models/toy.py",
  });
});

test("methods, nested functions and documents of the whole function", () => {
  const nested = encodeURIComponent("make.<locals>.Block.forward");
  assert.equal(parseAddress(`fuselens://report/${nested}/graph12/joint.py?file=x`)?.function, "make.<locals>.Block.forward");
  const whole = parseAddress("fuselens://report/toy/guards.txt?file=x");
  assert.deepEqual([whole?.graph, whole?.name], ["", "guards.txt"]);
});

test("other addresses are not ours", () => {
  for (const uri of ["file:///a.py", "fuselens://other/x/y", "fuselens://report/", "fuselens://report/toy", ""]) {
    assert.equal(parseAddress(uri), undefined, uri);
  }
});

test("spellings of one address have one key", () => {
  const spellings = [
    `fuselens://report/a.%3Clocals%3E.f/graph0/kernel.cpp?file=${encodeURIComponent(FILE)}`,
    `fuselens://report/a.<locals>.f/graph0/kernel.cpp?file=${FILE}`,
    // what an editor makes of the first one: encoded once more, and only in part
    `fuselens://report/a.%3Clocals%3E.f/graph0/kernel.cpp?file%3D${encodeURIComponent(encodeURIComponent(FILE))}`,
  ];
  assert.equal(new Set(spellings.map(addressKey)).size, 1);
  assert.notEqual(addressKey(spellings[0] ?? ""), addressKey("fuselens://report/a.%3Clocals%3E.f/graph1/kernel.cpp?file=x"));
});

test("a malformed escape stands for itself", () => {
  assert.equal(parseAddress("fuselens://report/50%/graph0/kernel.cpp?file=x")?.function, "50%");
  assert.equal(addressKey("untitled:a"), "untitled:a");
});

/** What an editor makes of a URI: parts that are decoded once. */
function parts(uri: string): UriParts {
  const { protocol, hostname, pathname, search } = new URL(uri);
  return {
    scheme: protocol.slice(0, -1),
    authority: hostname,
    path: decodeURIComponent(pathname),
    query: decodeURIComponent(search.slice(1)),
  };
}

test("the editor's address has a title, and the server's comes back from it", () => {
  const server = parts(`fuselens://report/a.%3Clocals%3E.f/graph0/cpp.backward.cpp?file=${encodeURIComponent(FILE)}`);
  const query = queryInEditor(server);
  assert.deepEqual(JSON.parse(query), { title: "a.<locals>.f · graph 0 · C++ · backward", file: FILE });
  assert.equal(queryInEditor({ ...server, query }), query);
  assert.equal(queryOnServer({ ...server, query }), server.query);
  const inEditor = `fuselens://report/a.<locals>.f/graph0/cpp.backward.cpp?${encodeURIComponent(query)}`;
  assert.equal(addressKey(inEditor), addressKey(`fuselens://report/a.<locals>.f/graph0/cpp.backward.cpp?file=${FILE}`));
});

test("other addresses stay as they are", () => {
  for (const uri of ["file:///a.py?file=x", "fuselens://codes/FL101.md", "fuselens://report/toy/guards.txt?x"]) {
    assert.equal(queryInEditor(parts(uri)), parts(uri).query);
    assert.equal(queryOnServer(parts(uri)), parts(uri).query);
  }
  assert.equal(queryOnServer({ ...parts("fuselens://report/toy/guards.txt"), query: "{" }), "{");
});

test("titles of tabs", () => {
  const titleOf = (path: string): string => title(parseAddress(`fuselens://report/${path}?file=x`) ?? assert.fail());
  assert.equal(titleOf("toy/graph0/cpp.cpp"), "toy · graph 0 · C++");
  assert.equal(titleOf("toy/graph12/llir.ll"), "toy · graph 12 · LLVM IR");
  assert.equal(titleOf("toy/guards.txt"), "toy · guards");
});
