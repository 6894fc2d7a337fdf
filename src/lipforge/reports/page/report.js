(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; document.querySelectorAll(".mark.on").forEach(m => m.classList.remove("on")); };
  const show = mark => {
    hide();
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const middle = at.left + Math.min(at.width, 120) / 2;
    const left = Math.max(6, Math.min(middle - own.width / 2, document.documentElement.clientWidth - own.width - 6));
    const above = at.top - own.height - 6;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : at.bottom + 6) + "px";
  };
  document.addEventListener("pointerover", event => {
    const mark = event.target.closest(".mark");
    if (mark) show(mark); else if (!tip.hidden) hide();
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.querySelectorAll("svg.chart").forEach(chart => {
    const marks = [...chart.querySelectorAll(".mark")];
    let here = -1;
    chart.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !marks.length) return;
      event.preventDefault();
      here = (here + step + marks.length) % marks.length;
      show(marks[here]);
    });
    chart.addEventListener("blur", () => { here = -1; hide(); });
  });
  const contents = document.querySelector("nav details");
  if (window.matchMedia("(max-width: 1100px)").matches) contents.open = false;
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not([open])")];
    opened.forEach(details => { details.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach(details => { details.open = false; }));
})();
