// The list that a person chooses a change from, as plain data.

import type { OfferedChanges } from "../server/protocol";

export interface ChangeItem {
  label: string;
  description?: string;
  detail?: string;
  /** Its number; undefined: all that was tried. */
  change: number | undefined;
}

export function changeItems(told: OfferedChanges): ChangeItem[] {
  const changes = told.offered.map(({ title, gain, detail }, change) => ({ label: title, description: gain, detail, change }));
  return [...changes, { label: "All That Was Tried", description: "and what was refused, and why", change: undefined }];
}
