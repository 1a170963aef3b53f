// The addresses of virtual documents, made by the server:
//   fuselens://report/<function>/<graph>/<name>?file=<uri of the Python file>
// In the editor the query is {"title": "toy · graph 0 · C++", "file": …}, because the label of a tab can be made of JSON alone.
// Editors normalise percent-encoding in their own ways, so addresses are compared by what they mean.

export const SCHEME = "fuselens";

export interface DocumentAddress {
  function: string;
  /** "graph0", or "" for a document about the whole function. */
  graph: string;
  /** "kernel.cpp" */
  name: string;
  /** URI of the Python file, decoded. */
  file: string;
}

/** The parts of a document's address; undefined when `uri` is not one. */
export function parseAddress(uri: string): DocumentAddress | undefined {
  const match = /^fuselens:\/\/report\/([^?#]*)(?:\?([^#]*))?/.exec(uri);
  if (match === null) {
    return undefined;
  }
  const segments = (match[1] ?? "").split("/").filter((segment) => segment !== "").map(decode);
  const name = segments.pop();
  const first = segments.shift();
  if (name === undefined || first === undefined) {
    return undefined;
  }
  const query = decode(match[2] ?? "");
  return { function: first, graph: segments.join("/"), name, file: decode(fileOf(query) ?? "") };
}

/** The parts of a URI, decoded once, as the editor has them. */
export interface UriParts {
  scheme: string;
  authority: string;
  path: string;
  query: string;
}

/** The query of a document's address as the editor shall have it: its tab reads as {@link title} says. */
export function queryInEditor({ scheme, authority, path, query }: UriParts): string {
  const address = parseAddress(`${scheme}://${authority}${path}`);
  const file = fileOf(query);
  const ours = address !== undefined && file !== undefined && !query.startsWith("{");
  return ours ? JSON.stringify({ title: title(address), file }) : query;
}

/** The query of a document's address as the server has it. */
export function queryOnServer({ scheme, query }: UriParts): string {
  const file = scheme === SCHEME && query.startsWith("{") ? fileOf(query) : undefined;
  return file === undefined ? query : `file=${file}`;
}

const NAMES: Readonly<Record<string, string>> = {
  capture: "graph",
  joint: "joint graph",
  forward: "forward graph",
  backward: "backward graph",
  simplify: "simplified graph",
  lower: "loops before fusion",
  fuse: "fused loops",
  order: "loops",
  cpp: "C++",
  triton: "Triton",
  host: "host program",
  ttir: "TTIR",
  ttgir: "TTGIR",
  llir: "LLVM IR",
  ptx: "PTX",
  sass: "SASS",
};

/** What a tab reads: "toy · graph 0 · C++". */
export function title({ function: name, graph, name: file }: DocumentAddress): string {
  const [stage = "", phase] = file.replace(/\.\w+$/, "").split(".");
  const parts = [name, graph.replace(/^graph(\d+)$/, "graph $1"), NAMES[stage] ?? stage, phase ?? ""];
  return parts.filter((part) => part !== "").join(" · ").replaceAll("/", "∕");
}

function fileOf(query: string): string | undefined {
  if (!query.startsWith("{")) {
    return /(?:^|&)file=(.*)$/.exec(query)?.[1];
  }
  try {
    const { file } = JSON.parse(query) as { file?: unknown };
    return typeof file === "string" ? file : undefined;
  } catch {
    return undefined;
  }
}

/** Equal for two spellings of the same address; any other string stands for itself. */
export function addressKey(uri: string): string {
  const address = parseAddress(uri);
  return address ? JSON.stringify([address.function, address.graph, address.name, address.file]) : uri;
}

/** Decodes until nothing changes, because an address may have been encoded once more on its way. */
function decode(text: string): string {
  for (let current = text; ; ) {
    let decoded: string;
    try {
      decoded = decodeURIComponent(current);
    } catch {
      return current;
    }
    if (decoded === current) {
      return current;
    }
    current = decoded;
  }
}
