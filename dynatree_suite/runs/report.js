// Draws every figure from the JSON inside its element, and aligns numeric table cells to the right.
addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".dynatree-figure")) {
    const figure = JSON.parse(place.querySelector("script").textContent);
    if (typeof Plotly === "undefined") {
      place.textContent = "This figure needs plotly.min.js beside this page.";
      continue;
    }
    const layout = { ...figure.layout, autosize: true };
    delete layout.width;
    Plotly.newPlot(place, figure.data, layout, { responsive: true, displaylogo: false });
  }
  const number = /^[-+\u2212~]?\d[\d,.]*(\s?[%x\u00d7]|\s[A-Za-z\/]+)?(\s?\[.*\])?$/;
  for (const cell of document.querySelectorAll("td")) {
    if (number.test(cell.textContent.trim())) cell.classList.add("number");
  }
});
