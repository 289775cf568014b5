package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
)

// client asks a server for pages, one after the other or several at once.
type client struct {
	http *fasthttp.HostClient
	key  string
}

func (s *server) client(key string) *client {
	return &client{http: &fasthttp.HostClient{Addr: s.address, MaxConns: 64}, key: key}
}

// get reads a page. status is its Cache-Status without the age of the proof.
func (c *client) get(path, encoding string) (body []byte, status string, err error) {
	request, answer := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(answer)
	request.SetRequestURI("http://" + c.http.Addr + path)
	request.Header.Set("X-API-Key", c.key)
	request.Header.Set("Accept-Encoding", encoding)
	if err := c.http.Do(request, answer); err != nil {
		return nil, "", err
	}
	if answer.StatusCode() != fasthttp.StatusOK {
		return nil, "", fmt.Errorf("%s: %d %s", path, answer.StatusCode(), answer.Body())
	}
	from, _, _ := bytes.Cut(answer.Header.Peek("Cache-Status"), []byte("; proof-ms="))
	return append([]byte(nil), answer.Body()...), string(from), nil
}

// walk follows nextCursor from the first page on and returns the addresses of
// the pages it saw, at most n.
func (c *client) walk(ctx context.Context, n int) (paths []string, err error) {
	err = c.follow(ctx, n, func(path string, _ []byte, _ string) { paths = append(paths, path) })
	return paths, err
}

// follow calls handle with each page of a walk, at most n.
func (c *client) follow(ctx context.Context, n int, handle func(path string, body []byte, status string)) error {
	path := itemsPath(pageSize)
	for range n {
		if ctx.Err() != nil {
			break
		}
		body, status, err := c.get(path, "identity")
		if err != nil {
			return err
		}
		handle(path, body, status)
		var page struct {
			Page struct{ NextCursor string }
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return err
		}
		if page.Page.NextCursor == "" {
			break
		}
		path = itemsPath(pageSize) + "&cursor=" + page.Page.NextCursor
	}
	return ctx.Err()
}

// getAll reads the pages over eight connections and counts the answers by
// their Cache-Status, and their bytes.
func (c *client) getAll(paths []string, encoding string) (by map[string]int, bytes int, err error) {
	var mu sync.Mutex // guards the results
	by = map[string]int{}
	err = each(context.Background(), len(paths), func(i int) error {
		body, status, err := c.get(paths[i], encoding)
		mu.Lock()
		defer mu.Unlock()
		by[status]++
		bytes += len(body)
		return err
	})
	return by, bytes, err
}

// each calls do for 0 to n-1, eight at a time, until one fails.
func each(ctx context.Context, n int, do func(i int) error) error {
	all, running := errgroup.WithContext(ctx)
	all.SetLimit(8)
	for i := 0; i < n && running.Err() == nil; i++ {
		all.Go(func() error { return do(i) })
	}
	return errors.Join(all.Wait(), ctx.Err())
}
