// A line of the source lights its kernels' other lines, and the other way round; a click opens the kernels.
for (const section of document.querySelectorAll(".function")) {
  const lit = (names, on) => {
    for (const row of section.querySelectorAll("[data-kernels], [data-kernel]")) {
      const own = (row.dataset.kernels ?? row.dataset.kernel).split(" ");
      if (own.some((name) => names.includes(name))) row.classList.toggle("lit", on);
    }
  };
  for (const row of section.querySelectorAll("[data-kernels]")) {
    const names = row.dataset.kernels.split(" ");
    row.addEventListener("mouseenter", () => lit(names, true));
    row.addEventListener("mouseleave", () => lit(names, false));
    row.addEventListener("click", () => {
      for (const kernel of section.querySelectorAll(".kernel")) kernel.open = names.includes(kernel.dataset.kernel);
      section.querySelector(".kernel[open]")?.scrollIntoView({ block: "nearest" });
    });
  }
  for (const kernel of section.querySelectorAll(".kernel")) {
    kernel.addEventListener("mouseenter", () => lit([kernel.dataset.kernel], true));
    kernel.addEventListener("mouseleave", () => lit([kernel.dataset.kernel], false));
  }
  for (const row of section.querySelectorAll("[data-lines]")) {
    const lines = row.dataset.lines.split(" ").map((line) => section.querySelector(`[data-line="${line}"]`));
    const toggle = (on) => lines.forEach((line) => line?.classList.toggle("lit", on));
    row.addEventListener("mouseenter", () => toggle(true));
    row.addEventListener("mouseleave", () => toggle(false));
  }
}
