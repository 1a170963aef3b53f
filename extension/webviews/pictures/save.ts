// A chart as a file: the SVG of the page, with the styles that it has there written into it.

import { element } from "./dom";
import type { Picture } from "./graph";

const STYLES = ["fill", "stroke", "paint-order", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-family", "font-size", "font-weight"];
const MARGIN = 16;

/** All charts of a panel, one below the other; undefined where there is none. */
export function chartPicture(panel: HTMLElement): Picture | undefined {
  const charts = [...panel.querySelectorAll<SVGSVGElement>("svg.chart")];
  if (charts.length === 0) {
    return undefined;
  }
  const width = Math.max(...charts.map((svg) => svg.width.baseVal.value)) + 2 * MARGIN;
  let y = MARGIN;
  const parts = charts.map((svg) => {
    const copy = styled(svg) as SVGSVGElement;
    copy.setAttribute("x", String(MARGIN));
    copy.setAttribute("y", String(y));
    y += svg.height.baseVal.value + MARGIN;
    return new XMLSerializer().serializeToString(copy);
  });
  const background = getComputedStyle(document.body).backgroundColor;
  const size = `width="${width}" height="${y}" viewBox="0 0 ${width} ${y}"`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" ${size}>\n<rect width="${width}" height="${y}" fill="${background}"/>\n${parts.join("\n")}\n</svg>\n`;
  return { svg, png: () => rastered(svg, width, y) };
}

function styled(from: Element): Element {
  const copy = from.cloneNode(false) as Element;
  const computed = getComputedStyle(from);
  for (const name of STYLES) {
    copy.setAttribute(name, computed.getPropertyValue(name));
  }
  for (const name of ["class", "tabindex", "role", "data-key"]) {
    copy.removeAttribute(name);
  }
  for (const child of from.childNodes) {
    copy.append(child instanceof Element ? styled(child) : child.cloneNode());
  }
  return copy;
}

async function rastered(svg: string, width: number, height: number): Promise<string> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = element("canvas", { width: width * 2, height: height * 2 });
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png").replace(/^.*,/, "");
}
