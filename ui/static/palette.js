// The page's colours for a canvas. Asking for a computed style makes the browser bring all styles up
// to date, so each is asked for once in light and once in dark. Plain script in the page.

class Palette {
  constructor(element) {
    this.element = element;
    this.refresh();
  }

  // Call it before drawing; gives whether light and dark have changed places.
  refresh() {
    const dark = this.element.closest(".dark") !== null;
    if (dark === this.dark) return false;
    this.dark = dark;
    this.style = getComputedStyle(this.element);
    this.colours = {};
    return true;
  }

  // `name` is one of ui/theme.py.
  of(name) {
    this.colours[name] ??= this.style.getPropertyValue(`--${name}`).trim();
    return this.colours[name];
  }
}
