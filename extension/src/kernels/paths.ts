// Where things are beside a draft of a kernel.

/** The path of our text beside a draft: `forward.ours.cpp` of `forward.cpp`. */
export function oursBeside(path: string): string {
  return path.replace(/(\.\w+)$/, ".ours$1");
}
