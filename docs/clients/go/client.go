// Package listedge keeps a copy of a workspace's items or contacts in step with
// a listedge service. It has no dependency: copy the folder into your module.
// ../README.md says how to use it.
package listedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client sends requests to a service.
type Client struct {
	URL     string        // of the service, such as https://listedge.example.com
	Key     string        // an API key, best one of its own: see ../README.md
	MaxWait time.Duration // how long one page is tried for, waits included; 0 = a minute
	HTTP    *http.Client  // nil = one that gives each try 30 seconds
}

// Problem is an error that waiting does not mend, or that would take longer than
// MaxWait: the service answered it, or the URL is wrong.
type Problem struct {
	Status     int       // 0 = there was no answer
	Code       ErrorCode // "" if the service did not answer
	Message    string
	Details    ErrorDetails  // by parameter
	RequestID  string        // to be quoted in a report
	RetryAfter time.Duration // 0 = none
}

func (p *Problem) Error() string {
	if p.Status == 0 {
		return p.Message
	}
	return fmt.Sprintf("%d %s: %s", p.Status, cmp.Or(p.Code, "no answer of listedge"), p.Message)
}

// list is the body of a page.
type list[R Row] struct {
	Data []R  `json:"data"`
	Page Page `json:"page"`
}

var defaultHTTP = &http.Client{Timeout: 30 * time.Second}

// read requests a page until it is there. It waits as long as Retry-After says, and for
// up to 8 s after a broken connection. It waits up to half as long again, so that many
// clients do not come back at once. If the page still has the ETag, it returns none.
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
		pause += rand.N(pause / 2)
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

// try sends one request. net/http asks for gzip, and decompresses it. It follows no
// redirect, because net/http would send the key wherever that leads.
func try[R Row](ctx context.Context, c *Client, path string, query url.Values, etag string) (page *list[R], newTag string, err error) {
	address, err := url.Parse(strings.TrimRight(c.URL, "/") + path + "?" + query.Encode())
	if err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" {
		return nil, "", &Problem{Message: fmt.Sprintf("%q is not the URL of a service, such as https://listedge.example.com", c.URL)}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("X-API-Key", c.Key)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	client := *cmp.Or(c.HTTP, defaultHTTP)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(request)
	if err != nil {
		return nil, "", wrongAddress(err)
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
	if err := json.Unmarshal(body, page); err != nil || page.Data == nil {
		return nil, "", &Problem{Status: response.StatusCode, Message: "the answer is not a page of listedge; check the URL"}
	}
	return page, response.Header.Get("ETag"), nil
}

// wrongAddress makes a Problem of a request's error if there is no such host, or if it has
// the certificate of another.
func wrongAddress(err error) error {
	var unknown *net.DNSError
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &unknown) && unknown.IsNotFound || errors.As(err, &certificate) {
		return &Problem{Message: err.Error()}
	}
	return err
}

func problemOf(response *http.Response, body []byte) *Problem {
	p := &Problem{Status: response.StatusCode, Message: http.StatusText(response.StatusCode)}
	if to := response.Header.Get("Location"); to != "" {
		p.Message += " to " + to + ", which is not followed; check the URL"
	}
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
