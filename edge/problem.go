package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/metrics"
	"listedge/origin"
)

// writeProblem puts an error answer onto the wire, and into the log if it is
// our fault.
func (s *Server) writeProblem(x *exchange, f failure) {
	a := x.conn.newAnswer(f.problem.status)
	a.lines = append(a.lines, "Cache-Control: no-store\r\n"+noSniff...)
	switch f.problem.status {
	case fasthttp.StatusTooManyRequests, fasthttp.StatusServiceUnavailable: // what passes by itself
		a.lines = append(strconv.AppendInt(append(a.lines, "Retry-After: "...), max(retrySoon, f.retry), 10), crlf...)
	}
	if f.problem == wrongMethod {
		a.lines = append(a.lines, "Allow: GET, HEAD\r\n"...)
	}
	s.addLimits(a, x)
	s.addTiming(a, x)
	a.add(headerRequestID, x.id)
	a.body(problemBody(nil, f.problem, &f.faults, x.id))
	x.outcome, x.failed = metrics.OutcomeError, f
	if f.problem.status == fasthttp.StatusTooManyRequests {
		x.outcome = metrics.OutcomeLimited
	}
	if f.problem.ours() {
		if tell, untold := f.problem.log.tell(x.now, f.problem == internalError); tell {
			s.logger.LogAttrs(context.Background(), slog.LevelError, "request failed",
				slog.String("requestId", string(x.id)), slog.String("route", x.route.String()),
				slog.Int("status", f.problem.status), slog.Any("error", f.cause), slog.Uint64("alike", untold))
		}
	}
}

// problemBody appends the body of an error answer.
func problemBody(dst []byte, p *problem, wrong *faults, id []byte) []byte {
	type inner struct {
		Code    string  `json:"code"`
		Message string  `json:"message"`
		Details details `json:"details,omitempty"`
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(struct {
		Error     inner  `json:"error"`
		RequestID string `json:"requestId"`
	}{inner{p.code, wrong.message(p), wrong.details}, string(id)}); err != nil {
		panic("BUG: " + err.Error()) // strings always encode
	}
	return append(dst, bytes.TrimSuffix(out.Bytes(), []byte{'\n'})...)
}

// problem is a kind of error answer. This file is the one place where an error
// gets its code, its status and its message.
type problem struct {
	code    string
	status  int
	message string
	log     *logged // of those that are logged
}

// ours says whether the service failed, and not the client.
func (p *problem) ours() bool { return p != nil && p.log != nil }

// logged keeps an outage, of which every request tells, from filling the log.
type logged struct {
	second atomic.Int64
	untold atomic.Uint64
}

// tell says whether to log this one, once a second or always, and how many of
// its kind were not told before it.
func (l *logged) tell(now time.Time, always bool) (tell bool, untold uint64) {
	second := l.second.Load()
	if !always && (now.Unix() == second || !l.second.CompareAndSwap(second, now.Unix())) {
		l.untold.Add(1)
		return false, 0
	}
	return true, l.untold.Swap(0)
}

var (
	badRequest    = &problem{"REQUEST_FAILED", 400, "The request could not be read.", nil}
	wrongMethod   = &problem{"REQUEST_FAILED", 405, "Only GET and HEAD are answered here.", nil}
	tooSlow       = &problem{"REQUEST_FAILED", 408, "The request took too long to arrive.", nil}
	mismatch      = &problem{"REQUEST_FAILED", 412, "The page does not meet If-Match; only * does.", nil}
	bodyTooLarge  = &problem{"REQUEST_FAILED", 413, "A list request has no body.", nil}
	headTooLarge  = &problem{"REQUEST_FAILED", 431, "The request's header is too large.", nil}
	invalid       = &problem{"VALIDATION_ERROR", 400, "Some parameters are not valid.", nil}
	keyMissing    = &problem{"UNAUTHORIZED", 401, "Send your API key in the X-API-Key header, once.", nil}
	keyMalformed  = &problem{"UNAUTHORIZED", 401, "This is not an API key; look for a typing error.", nil}
	keyRefused    = &problem{"UNAUTHORIZED", 401, "This API key is not valid.", nil}
	scopeMissing  = &problem{"FORBIDDEN", 403, "This API key may not read this collection.", nil}
	suspended     = &problem{"FORBIDDEN", 403, "This workspace is suspended.", nil}
	notFound      = &problem{"NOT_FOUND", 404, "There is nothing at this address.", nil}
	rateLimited   = &problem{"RATE_LIMITED", 429, "Too many requests; wait as long as Retry-After says.", nil}
	authLimited   = &problem{"RATE_LIMITED", 429, "Too many requests with invalid API keys; wait as long as Retry-After says.", nil}
	noKeyLimited  = &problem{"RATE_LIMITED", 429, "Too many requests that need no API key; wait as long as Retry-After says.", nil}
	keysAway      = &problem{"SERVICE_UNAVAILABLE", 503, "API keys cannot be checked at the moment.", &logged{}}
	originAway    = &problem{"SERVICE_UNAVAILABLE", 503, "The database cannot be reached at the moment.", &logged{}}
	originClosed  = &problem{"SERVICE_UNAVAILABLE", 503, "This collection cannot be read at the moment.", &logged{}}
	originBusy    = &problem{"SERVICE_UNAVAILABLE", 503, "Too many queries are waiting; try again shortly.", &logged{}}
	originSlow    = &problem{"SERVICE_UNAVAILABLE", 503, "The query took too long; try again or narrow it.", &logged{}}
	tooManyConns  = &problem{"SERVICE_UNAVAILABLE", 503, "Too many connections.", &logged{}}
	notStored     = &problem{"REQUEST_FAILED", 504, "No stored page will do, and only-if-cached forbids to ask the database.", nil}
	wrongVersion  = &problem{"REQUEST_FAILED", 505, "This is not answered in that version of HTTP; use HTTP/1.1.", nil}
	internalError = &problem{"INTERNAL_ERROR", 500, "Something went wrong here; the request id tells us where to look.", &logged{}}
)

// retrySoon, in seconds, is the Retry-After of a 503: what is away is asked
// again after about a second.
const retrySoon = 1

// lookUpProblem tells what a failed look-up of a page is to the client.
func lookUpProblem(err error) *problem {
	switch {
	case errors.Is(err, cache.ErrNotStored):
		return notStored
	case errors.Is(err, origin.ErrOverloaded):
		return originBusy
	case errors.Is(err, origin.ErrTimeout), errors.Is(err, cache.ErrFillTimeout), errors.Is(err, context.DeadlineExceeded):
		return originSlow
	case errors.Is(err, origin.ErrUnavailable), errors.Is(err, cache.ErrWrongServer), errors.Is(err, context.Canceled):
		return originAway
	case errors.Is(err, origin.ErrNotAllowed): // by whoever may grant: to the client it is an outage
		return originClosed
	}
	return internalError
}

// unreadableProblem tells what fasthttp's error is to the client.
func unreadableProblem(err error) *problem {
	var small *fasthttp.ErrSmallBuffer
	var network net.Error
	switch {
	case errors.As(err, &small):
		return headTooLarge
	case errors.As(err, &network) && network.Timeout():
		return tooSlow
	}
	return badRequest
}
