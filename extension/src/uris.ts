// The addresses of virtual documents, made by the server:
//   fuselens://report/<function>/<graph>/<name>?file=<uri of the Python file>
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
  return { function: first, graph: segments.join("/"), name, file: decode(/(?:^|&)file=(.*)$/.exec(query)?.[1] ?? "") };
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
