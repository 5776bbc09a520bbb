// Polls only while the page is visible, and shows times in the time zone of the browser.
"use strict";
(() => {
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  // The two greatest units of a duration: "2 h 5 min". Twin: format_seconds() in observe/text.py.
  function formatSeconds(seconds) {
    let rest = Math.max(0, Math.round(seconds));
    const parts = [];
    for (const [size, unit] of UNITS) {
      const count = Math.floor(rest / size);
      rest %= size;
      if (count) {
        parts.push(`${count.toLocaleString("en")} ${unit}`);
      } else if (parts.length) {
        break;
      }
    }
    return parts.slice(0, 2).join(" ") || "0 s";
  }

  function formatClock(at) {
    const pad = (number) => String(number).padStart(2, "0");
    const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(pad).join(":");
    const date = [at.getFullYear(), pad(at.getMonth() + 1), pad(at.getDate())].join("-");
    return at.toDateString() === new Date().toDateString() ? time : `${date} ${time}`;
  }

  const SHOWN = {
    clock: formatClock,
    age: (at) => formatSeconds((Date.now() - at) / 1000),
    rest: (at) => (at > Date.now() ? `in ${formatSeconds((at - Date.now()) / 1000)}` : ""),
  };

  function showTimes() {
    for (const element of document.querySelectorAll("time[data-show]")) {
      const text = SHOWN[element.dataset.show](new Date(element.dateTime));
      if (element.textContent !== text) {
        element.textContent = text;
      }
      if (element.title !== element.dateTime) {
        element.title = element.dateTime;
      }
    }
  }

  const problem = document.getElementById("problem");
  const updates = document.getElementById("updates");

  function showProblem(text) {
    if (problem.textContent !== text) {
      problem.textContent = text;
    }
  }

  if (updates) {
    updates.parentElement.hidden = false;
  }
  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden || !updates.checked) {
      event.preventDefault();
    }
  });
  document.addEventListener("htmx:before:response", (event) => {
    // A login that has ended leads elsewhere; the whole page shows where.
    if (event.detail.ctx.response.raw.redirected) {
      event.preventDefault();
      location.reload();
    }
    showProblem("");
  });
  document.addEventListener("htmx:error", () => {
    showProblem(`No answer since ${formatClock(new Date())}: the page shows an older state.`);
  });
  document.addEventListener("htmx:after:swap", showTimes);
  setInterval(showTimes, 1000);
  showTimes();
})();
