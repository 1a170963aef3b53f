// The eight colours of kernels, as package.json contributes them, for what cannot name a colour of the theme: pictures.

import { DARK, LIGHT, type Palette } from "./marks";

export const COLOURS = 8;

interface Contributed {
  id: string;
  defaults: { light: string; dark: string };
}

/** The palettes for light and for dark themes. */
export function palettes(contributed: readonly Contributed[]): { light: Palette; dark: Palette } {
  const found = new Map(contributed.map(({ id, defaults }) => [id, defaults]));
  const kernels = Array.from({ length: COLOURS }, (_, n) => found.get(`fuselens.kernel${n + 1}`));
  const of = (theme: "light" | "dark"): string[] => kernels.map((defaults) => defaults?.[theme] ?? "#888888");
  return { light: { ...LIGHT, kernels: of("light") }, dark: { ...DARK, kernels: of("dark") } };
}
