package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"listedge/cmd/listedge/doctor"
)

type explainCommand struct {
	jsonFlag
	ID   string          `arg:"" help:"Id of a recent request: the X-Request-Id of its response."`
	Node doctor.AdminURL `help:"Admin listener of the node that answered it." default:"http://127.0.0.1:9090" placeholder:"URL"`
}

// explainTimeout bounds the whole command `listedge explain`.
const explainTimeout = 10 * time.Second

// Run reads the request's records from the node and prints them, a field a line.
func (c *explainCommand) Run(ctx context.Context, t *terminal) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	var records []json.RawMessage // of edge.Record
	err := c.Node.Get(ctx, "explain?"+url.Values{"request-id": {c.ID}}.Encode(), &records)
	switch {
	case err != nil:
		return fmt.Errorf("ask the node: %w", err)
	case len(records) == 0:
		return fmt.Errorf("this node does not remember a request %s: another node answered it, it is too old, or it was a hit (a node keeps only a sample of hits)",
			c.ID)
	}
	return c.print(t, records, nil, "# Times are in seconds.\n{{range .}}{{fields .}}{{end}}")
}
