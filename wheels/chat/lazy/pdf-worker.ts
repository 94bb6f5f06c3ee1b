// Upstream loads the worker with the page: `pdf.ts` loads it when a PDF comes.
export default '';
