// Every text whose colour and background are nearer to each other than 4.5 : 1, as the WCAG asks of text.
() => {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const linear = (part) => ((part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const weak = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const owner = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !owner.checkVisibility() || owner.closest("script, option")) continue;
    const style = getComputedStyle(owner);
    const front = parse(owner.closest("svg") ? style.fill : style.color);
    const both = [light(front), light(behind(owner))].sort((one, other) => other - one);
    const ratio = (both[0] + 0.05) / (both[1] + 0.05);
    if (ratio < 4.5) weak.set(`${owner.tagName}.${owner.className} ${ratio.toFixed(2)}`, 1);
  }
  return [...weak.keys()];
}
