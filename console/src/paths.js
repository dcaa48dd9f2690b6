// Where things are, from the page's own address.

/** Where the gateway is mounted: `/` or `/some/prefix/`. */
export function baseOf(pathname) {
  return pathname.replace(/console\/?$/, "");
}

/** The chat route: a prefix that ends in `/v1` stands for the route's own. */
export function chatPath(base) {
  return base.endsWith("/v1/") ? `${base}chat/completions` : `${base}v1/chat/completions`;
}
