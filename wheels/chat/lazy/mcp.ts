// In place of the client of MCP servers: the page's policy lets it talk to meshd alone.
class Unavailable {
	constructor() {
		throw new Error('This page talks to meshd alone, and to no MCP servers.');
	}
}

export class Client extends Unavailable {}
export class SSEClientTransport extends Unavailable {}
export class StreamableHTTPClientTransport extends Unavailable {}
export class WebSocketClientTransport extends Unavailable {}
export class StreamableHTTPError extends Error {}
