// Light, dark, or as the system has it. The choice is remembered by the browser; it is no secret.

const NAME = "baton-theme";
const listeners = [];

export function startTheme(select) {
  const set = (value) => {
    document.documentElement.dataset.theme = value;
    for (const listener of listeners) listener();
  };
  select.value = ["light", "dark"].includes(localStorage.getItem(NAME))
    ? localStorage.getItem(NAME)
    : "auto";
  set(select.value);
  select.addEventListener("change", () => {
    localStorage.setItem(NAME, select.value);
    set(select.value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => set(select.value));
}

export function onTheme(listener) {
  listeners.push(listener);
}

/** A colour of the style sheet as a canvas takes it. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.className = `ink-${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
