// Shows why the model is not ready. The page knows only that it is loading: it asks for `/props` once a second until
// the answer is not 503, and drops the reason, which is taken from there. Text is inserted as text.
//
// A browser counts each refusal as an error in its console. So meshd is asked to refuse within an answer that is
// fine, and the page gets the refusal; but for the list of models, of which the page expects none.
{
	const QUIET = ['/props', '/v1/models'];
	const note = document.createElement('p');

	note.id = 'state';
	note.role = 'status';
	note.hidden = true;

	const plain = window.fetch;

	async function quietly(request) {
		request.headers.set('X-Meshd-Quiet', '1');

		const answer = await plain(request);
		const status = Number(answer.headers.get('X-Meshd-Status') ?? answer.status);

		if (status === answer.status) return answer;

		if (status === 503 && new URL(request.url).pathname === '/v1/models') {
			return Response.json({ data: [], object: 'list' });
		}

		return Response.json(await answer.json(), { status });
	}

	async function show(answer) {
		const body = answer.status === 503 ? await answer.clone().json().catch(() => null) : null;
		const reason = body?.error?.message ?? '';

		if (note.textContent !== reason) note.textContent = reason; // a screen reader says it once
		note.hidden = !reason;
	}

	window.fetch = async (...asked) => {
		const request = new Request(...asked);
		const url = new URL(request.url);

		if (request.method !== 'GET' || url.origin !== location.origin || !QUIET.includes(url.pathname)) {
			return plain(...asked);
		}

		const answer = await quietly(request);

		// one of several models may be unloaded, which is no reason to wait
		if (url.pathname === '/props' && !url.searchParams.has('model')) await show(answer);

		return answer;
	};
	document.addEventListener('DOMContentLoaded', () => document.body.append(note));
}
