// Shows why the model is not ready. The page knows only that it is loading: it asks for `/props` once a second until
// the answer is not 503, and drops the reason, which is taken from there. Text is inserted as text.
{
	const note = document.createElement('p');

	note.id = 'state';
	note.role = 'status';
	note.hidden = true;

	const plain = window.fetch;

	window.fetch = async (...asked) => {
		const answer = await plain(...asked);

		if (new URL(answer.url).pathname === '/props') {
			const body = answer.status === 503 ? await answer.clone().json().catch(() => null) : null;
			const reason = body?.error?.message ?? '';

			if (note.textContent !== reason) note.textContent = reason; // a screen reader says it once
			note.hidden = !reason;
		}

		return answer;
	};
	document.addEventListener('DOMContentLoaded', () => document.body.append(note));
}
