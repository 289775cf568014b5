// Package listedge keeps a copy of a workspace's items or contacts in step with
// a listedge service. It has no dependency: copy the folder into your module.
// ../README.md says how to use it.
package listedge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Client sends requests to a service.
type Client struct {
	URL     string        // of the service, such as https://listedge.example.com
	Key     string        // an API key, best one of its own: see ../README.md
	MaxWait time.Duration // how long one page is tried for, waits included; 0 = a minute
	HTTP    *http.Client  // nil = one that gives each try 30 seconds
}

// Problem is an error that the service answered: one that waiting does not
// mend, or that would take longer than MaxWait.
type Problem struct {
	Status     int
	Code       ErrorCode // "" if something in front of the service answered
	Message    string
	Details    ErrorDetails  // by parameter
	RequestID  string        // to be quoted in a report
	RetryAfter time.Duration // 0 = none
}

func (p *Problem) Error() string {
	text := fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Message)
	if p.RetryAfter > 0 {
		text += fmt.Sprintf(" (try again in %s)", p.RetryAfter)
	}
	return text
}

// list is the body of a page.
type list[R Row] struct {
	Data []R  `json:"data"`
	Page Page `json:"page"`
}

var defaultHTTP = &http.Client{Timeout: 30 * time.Second}

// read requests a page until it is there. It waits as long as Retry-After says,
// and for up to 8 s after a broken connection. If the page still has the ETag, it
// returns none.
func read[R Row](ctx context.Context, c *Client, path string, query url.Values, etag string) (page *list[R], newTag string, err error) {
	patience := time.Now().Add(cmp.Or(c.MaxWait, time.Minute))
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 8*time.Second) {
		page, newTag, err = try[R](ctx, c, path, query, etag)
		problem, answered := errors.AsType[*Problem](err)
		switch {
		case err == nil || ctx.Err() != nil:
			return page, newTag, err
		case !answered: // the connection broke: the same request can be sent again
		case problem.Status < 500 && problem.Status != http.StatusTooManyRequests && problem.Status != http.StatusRequestTimeout:
			return nil, "", err
		}
		pause := wait
		if answered && problem.RetryAfter > 0 {
			pause = problem.RetryAfter
		}
		if time.Now().Add(pause).After(patience) {
			return nil, "", err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
}

// try sends one request. net/http asks for gzip, and decompresses it.
func try[R Row](ctx context.Context, c *Client, path string, query url.Values, etag string) (page *list[R], newTag string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("X-API-Key", c.Key)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	response, err := cmp.Or(c.HTTP, defaultHTTP).Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	case response.StatusCode == http.StatusNotModified:
		return nil, etag, nil
	case response.StatusCode != http.StatusOK:
		return nil, "", problemOf(response, body)
	}
	page = new(list[R])
	if err := json.Unmarshal(body, page); err != nil {
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	}
	return page, response.Header.Get("ETag"), nil
}

func problemOf(response *http.Response, body []byte) *Problem {
	p := &Problem{Status: response.StatusCode, Message: http.StatusText(response.StatusCode)}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	var said Error
	if json.Unmarshal(body, &said) != nil || said.Error.Code == "" {
		return p // not the service's
	}
	p.Code, p.Message, p.RequestID = said.Error.Code, said.Error.Message, said.RequestId
	if said.Error.Details != nil {
		p.Details = *said.Error.Details
	}
	return p
}
