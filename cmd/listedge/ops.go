package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"listedge/edge"
	"listedge/edge/admin"
)

type explainCommand struct {
	jsonFlag
	RequestID string   `help:"Id of a recent request: the X-Request-Id of its response." required:"" placeholder:"ID"`
	Admin     adminURL `help:"Admin listener of the node that answered it." default:"http://127.0.0.1:9090" placeholder:"URL"`
}

// Validate refuses an id that no request has.
func (c *explainCommand) Validate() error {
	if c.RequestID == "" {
		return errors.New("--request-id must not be empty")
	}
	return nil
}

// explainTimeout bounds the whole command.
const explainTimeout = 10 * time.Second

// Run asks the node why the request was refused, stale or slow.
func (c *explainCommand) Run(ctx context.Context, t *terminal) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	u := c.Admin.JoinPath("explain")
	u.RawQuery = url.Values{"request-id": {c.RequestID}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if failure := (*url.Error)(nil); errors.As(err, &failure) {
		err = failure.Err // whom it was to is known
	}
	if err != nil {
		return fmt.Errorf("ask the node: %w", err)
	}
	defer answer.Body.Close()
	var records []edge.Record
	switch answer.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("this node does not remember a request %s: another node answered it, it is too old, or it was a hit, of which only a sample is kept", c.RequestID)
	case http.StatusOK:
	case http.StatusMisdirectedRequest:
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return fmt.Errorf("ask the node: %s", bytes.TrimSpace(why))
	default:
		return fmt.Errorf("ask the node: %s", answer.Status)
	}
	if err := json.NewDecoder(answer.Body).Decode(&records); err != nil {
		return fmt.Errorf("ask the node: %w", err)
	}
	return c.print(t, records, func() {
		for i := range records {
			for _, sentence := range admin.Sentences(&records[i]) {
				fmt.Fprintln(t.out, sentence)
			}
		}
	})
}

// readyTimeout bounds the whole command; /readyz gives each of its checks a second.
const readyTimeout = 3 * time.Second

type readyCommand struct {
	Admin adminURL `help:"Admin listener of the node." default:"http://127.0.0.1:9090" placeholder:"URL"`
}

// Run requests /readyz, for health checks in a container without curl.
func (c *readyCommand) Run(ctx context.Context, t *terminal) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var n nodeSeen
	n.readiness, n.err = nodeAddress{url: c.Admin}.readiness(ctx, http.DefaultClient)
	switch {
	case n.err != nil:
		return fmt.Errorf("ask the node: %w", n.err)
	case n.readiness.Draining:
		return errors.New("not ready: draining")
	case !n.readiness.Ready:
		return fmt.Errorf("not ready: %s", n.complaints())
	}
	fmt.Fprintln(t.out, "ready")
	return nil
}
