package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// client asks a server for pages, one after the other or several at once.
type client struct {
	http  *fasthttp.HostClient
	key   string
	fresh bool // no page from a cache
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
	if c.fresh {
		request.Header.Set("Cache-Control", "no-cache")
	}
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
	const workers = 8
	var next, size atomic.Int64
	var mu sync.Mutex // guards by and errs
	by, errs := map[string]int{}, []error{}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(paths) {
					return
				}
				body, status, err := c.get(paths[i], encoding)
				size.Add(int64(len(body)))
				mu.Lock()
				by[status]++
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return by, int(size.Load()), errors.Join(errs...)
}
