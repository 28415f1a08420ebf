// Ticked rows: their ids go with the form, and live updates wait while there are any.

export function countChosen() {
  return document.querySelectorAll("[data-tick]:checked").length;
}

function update(form) {
  const ticks = [...form.querySelectorAll("[data-tick]")];
  const chosen = ticks.filter((tick) => tick.checked).map((tick) => tick.value);
  form.querySelector("#chosen-ids").value = chosen.join(",");
  for (const button of form.querySelectorAll("[data-bulk-action]")) button.disabled = chosen.length === 0;
  const text = form.querySelector("#chosen");
  text.dataset.before ??= text.textContent;
  text.textContent = chosen.length ? `${chosen.length} chosen` : text.dataset.before;
}

export function listenForChoices() {
  const form = document.querySelector("[data-bulk]");
  if (!form) return;
  form.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") {
      for (const tick of form.querySelectorAll("[data-tick]")) tick.checked = event.target.checked;
    }
    update(form);
  });
  form.addEventListener("submit", () => {
    // The ids say it all: a checkbox of its own for each would only make the address longer.
    for (const tick of form.querySelectorAll("[data-tick], #tick-all")) tick.disabled = true;
  });
  update(form);
}
