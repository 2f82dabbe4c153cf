// The link has the token behind #, which browsers send to nobody: it is posted, and the link forgotten.
"use strict";
(() => {
  const found = /^#token=([A-Za-z0-9_.~+\/=-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname);
  const form = document.getElementById("sign-in");
  form.elements.token.value = found[1];
  form.submit();
})();
