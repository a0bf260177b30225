// What a browser shows of the page that is open: a fault for each thing that is clipped, covered or hard to read.
const TOLERANCE = 0.75;
const faults = [];
const told = (node) => JSON.stringify(node.textContent.slice(0, 40));

function shown(node) {
  const box = node.getBoundingClientRect();
  return box.width > 0 && box.height > 0 && getComputedStyle(node).visibility === "visible";
}

function inside(box, ground) {
  return box.left >= ground.left - TOLERANCE && box.right <= ground.right + TOLERANCE
    && box.top >= ground.top - TOLERANCE && box.bottom <= ground.bottom + TOLERANCE;
}

function overlap(a, b) {
  return a.left < b.right - TOLERANCE && b.left < a.right - TOLERANCE
    && a.top < b.bottom - TOLERANCE && b.top < a.bottom - TOLERANCE;
}

// The ink of a text, without the leading that fonts keep above and below.
function ink(node) {
  const box = node.getBoundingClientRect();
  const spare = box.height * 0.15;
  return { left: box.left, right: box.right, top: box.top + spare, bottom: box.bottom - spare };
}

function luminance(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((part) => {
    const c = part / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const clear = (colour) => !colour || colour === "none" || colour === "transparent" || /^rgba.*, 0\)$/.test(colour);

// The colour that is behind the middle of a box, or what is there instead of one.
function ground(node, box) {
  const stack = document.elementsFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
  for (const other of stack) {
    if (other !== node && node.contains(other)) continue;
    const style = getComputedStyle(other);
    const colour = other instanceof SVGElement && !(other instanceof SVGSVGElement) && other.tagName !== "g"
      ? style.fill : style.backgroundColor;
    if (other.tagName !== "text" && other.tagName !== "tspan" && !clear(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

function read(node, colour) {
  const behind = ground(node, node.getBoundingClientRect());
  if (behind.startsWith("url")) faults.push(`on a texture: ${told(node)}`);
  else if (contrast(colour, behind) < 4.5) {
    faults.push(`contrast ${contrast(colour, behind).toFixed(2)} of ${colour} on ${behind}: ${told(node)}`);
  }
}

function drawing(svg) {
  const whole = svg.getBoundingClientRect();
  const cards = [...svg.querySelectorAll("rect.k, rect.b")].map((card) => card.getBoundingClientRect());
  const texts = [...svg.querySelectorAll("text")].filter(shown);
  const boxes = texts.map(ink);
  texts.forEach((node, turn) => {
    const box = boxes[turn];
    if (!inside(box, whole)) faults.push(`outside of the drawing: ${told(node)}`);
    const start = { left: box.left, right: box.left, top: box.top, bottom: box.bottom };
    const own = cards.filter((card) => inside(start, card) && card.width > 20);
    if (!own.every((card) => inside(box, card))) faults.push(`out of its card: ${told(node)}`);
    boxes.slice(0, turn).forEach((other, earlier) => {
      if (overlap(box, other)) faults.push(`overlaps: ${told(node)} and ${told(texts[earlier])}`);
    });
    read(node, getComputedStyle(node).fill);
  });
  for (const node of svg.querySelectorAll("rect, path, circle")) {
    if (!node.closest("defs") && shown(node) && !inside(node.getBoundingClientRect(), whole)) {
      faults.push(`a ${node.tagName} outside of the drawing`);
    }
  }
  if (!svg.querySelector(":scope > title")?.textContent) faults.push("a drawing without a title");
  if (!svg.querySelector(":scope > desc")?.textContent) faults.push("a drawing without a description");
  if (svg.getAttribute("role") !== "img") faults.push("a drawing that is no image to a screen reader");
  for (const id of (svg.getAttribute("aria-labelledby") ?? "").split(" ")) {
    if (document.querySelectorAll(`[id="${id}"]`).length !== 1) faults.push(`a label that is not there once: ${id}`);
  }
}

const drawings = [...document.querySelectorAll("svg")].filter(shown);
if (drawings.length !== arguments[0]) faults.push(`${drawings.length} drawings`);
drawings.forEach(drawing);
for (const node of document.querySelectorAll("h1, h2, p, caption, th, td")) {
  if (!shown(node) || !node.textContent) continue;
  read(node, getComputedStyle(node).color);
  if (node.scrollWidth > node.clientWidth + 1) faults.push(`wider than its place: ${told(node)}`);
}
if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the window");
if (document.querySelector("parsererror")) faults.push("not well-formed");
return { faults, texts: [...document.querySelectorAll("svg text")].filter(shown).length };
