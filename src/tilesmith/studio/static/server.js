// Requests to the server, its events, and small helpers for building the page. All addresses are relative: they carry the token.

export async function ask(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const content = await answer.json().catch(() => ({ error: `the server answered with status ${answer.status}` }));
  return { status: answer.status, ...content };
}

export const get = (path) => ask("GET", path);
export const post = (path, body = {}) => ask("POST", path, body);

// Call `heard` with every event, `connected` with whether the server answers.
export function listen(heard, connected) {
  const source = new EventSource("api/events");
  source.onmessage = (message) => heard(JSON.parse(message.data));
  source.onopen = () => connected(true);
  source.onerror = () => connected(false);
}

// Make an element. Strings become text, never markup.
export function make(name, attributes = {}, ...children) {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) one.addEventListener(key.slice(2), value);
    else if (value === true) one.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) one.setAttribute(key, value);
  }
  one.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return one;
}

export function trouble(message) {
  const line = document.getElementById("trouble");
  line.textContent = message;
  line.hidden = !message;
}
