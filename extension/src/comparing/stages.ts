// How the stages of two compilations, and revisions to compare with, are listed and named.

import type { ComparedStage, Comparison, Revision } from "../server/protocol";

/** Modes of `fuselens.compile` beside the default. */
export const MODES = ["max-autotune", "reduce-overhead", "max-autotune-no-cudagraphs"];

/** Those that differ first, else as they ran. */
export function inOrder(stages: readonly ComparedStage[]): ComparedStage[] {
  return [...stages.filter(({ differs }) => differs), ...stages.filter(({ differs }) => !differs)];
}

/** "toy · graph 0 · cpp: last save ↔ now" */
export function diffTitle(name: string, told: Pick<Comparison, "before" | "after">, stage: Pick<ComparedStage, "title">): string {
  return `${name} · ${stage.title}: ${told.before} ↔ ${told.after}`;
}

/** The path of one side; the last part tells the editor the language. */
export function sideName(name: string, side: string, stage: Pick<ComparedStage, "graph" | "name">): string {
  return `${name} ${side.replace(/[^\w.-]+/g, "_")}/graph${stage.graph}/${stage.name}`;
}

/** The revisions that are offered; what a person typed is one, too, where it is none of them. */
export function revisionItems(known: readonly Revision[], typed: string): { label: string; description: string; alwaysShow?: boolean }[] {
  const name = typed.trim();
  const items = known.map(({ name: label, about: description }) => ({ label, description }));
  const isKnown = name === "" || known.some((one) => one.name === name);
  return isKnown ? items : [...items, { label: name, description: "as git understands it", alwaysShow: true }];
}
