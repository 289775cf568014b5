package edge

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"listedge/cache"
	"listedge/internal/page"
)

// problem is a kind of error response. Only this file gives errors their code, status
// and message.
type problem struct {
	code    string
	status  int
	message string
	log     *rate.Sometimes // how often it is logged, as a failure of the service; nil = never: it is the client's
}

// failure is why a request ends with a problem. A nil *failure is none.
type failure struct {
	problem *problem
	message string  // for the client alone, because it may repeat what the client sent; "" = the problem's
	details details // for the client alone; nil = none
	retry   int64   // Retry-After in seconds; 0 = none
	cause   error   // for the log
}

// onceASecond logs a problem at most once a second: in an outage, every request fails.
func onceASecond() *rate.Sometimes { return &rate.Sometimes{Interval: time.Second} }

var (
	badRequest      = &problem{"REQUEST_FAILED", 400, "The request could not be read.", nil}
	notEncoded      = &problem{"REQUEST_FAILED", 400, "The address has characters that must be percent-encoded.", nil}
	wrongMethod     = &problem{"REQUEST_FAILED", 405, "Only GET and HEAD are supported here.", nil}
	tooSlow         = &problem{"REQUEST_FAILED", 408, "The request took too long to arrive.", nil}
	etagMismatch    = &problem{"REQUEST_FAILED", 412, "The page does not match If-Match; only * does.", nil}
	bodyTooLarge    = &problem{"REQUEST_FAILED", 413, "A list request has no body.", nil}
	headersTooLarge = &problem{"REQUEST_FAILED", 431, "The request's header is too large: it may have 16 KiB and 100 lines.", nil}
	invalid         = &problem{"VALIDATION_ERROR", 400, "Some parameters are not valid.", nil}
	keyMissing      = &problem{"UNAUTHORIZED", 401, "Send your API key in the X-API-Key header, once.", nil}
	keyMalformed    = &problem{"UNAUTHORIZED", 401, "This is not an API key; look for a typing error.", nil}
	keyRefused      = &problem{"UNAUTHORIZED", 401, "This API key is not valid.", nil}
	scopeMissing    = &problem{"FORBIDDEN", 403, "This API key may not read this collection.", nil}
	suspended       = &problem{"FORBIDDEN", 403, "This workspace is suspended.", nil}
	notFound        = &problem{"NOT_FOUND", 404, "There is nothing at this address; /openapi.json describes /v1/items and /v1/contacts.", nil}
	rateLimited     = &problem{"RATE_LIMITED", 429, "Too many requests; wait as long as Retry-After says.", nil}
	quotaReached    = &problem{"PLAN_LIMIT_REACHED", 429, "The quota of this workspace is used up; wait as long as Retry-After says.", nil}
	authLimited     = &problem{"RATE_LIMITED", 429, "Too many requests with invalid API keys; wait as long as Retry-After says.", nil}
	noKeyLimited    = &problem{"RATE_LIMITED", 429, "Too many requests that need no API key; wait as long as Retry-After says.", nil}
	keysDown        = &problem{"SERVICE_UNAVAILABLE", 503, "API keys cannot be checked at the moment.", onceASecond()}
	originDown      = &problem{"SERVICE_UNAVAILABLE", 503, "The database cannot be reached at the moment.", onceASecond()}
	originClosed    = &problem{"SERVICE_UNAVAILABLE", 503, "This collection cannot be read at the moment.", onceASecond()}
	originBusy      = &problem{"SERVICE_UNAVAILABLE", 503, "Too many queries are waiting; try again shortly.", onceASecond()}
	originSlow      = &problem{"SERVICE_UNAVAILABLE", 503, "The database took too long to answer.", onceASecond()}
	searchSlow      = &problem{"SERVICE_UNAVAILABLE", 503, "The search took too long, and may do so again; search for a longer text.", onceASecond()}
	tooManyConns    = &problem{"SERVICE_UNAVAILABLE", 503, "Too many connections.", onceASecond()}
	notStored       = &problem{"REQUEST_FAILED", 504, "No usable page is stored, and only-if-cached forbids reading the database.", nil}
	wrongVersion    = &problem{"REQUEST_FAILED", 505, "This version of HTTP is not supported; use HTTP/1.1.", nil}
	internalError   = &problem{"INTERNAL_ERROR", 500, "Something went wrong on our side; the request id helps us to find it.", &rate.Sometimes{Every: 1}}
)

// details says, for each invalid parameter, what is wrong with it. It has all parameters of
// the collection that are invalid, and the first unknown ones.
type details map[string]string

// lookUpFailed returns the failure for a page of the query that could not be looked up.
func lookUpFailed(q *page.Query, err error) *failure {
	f := &failure{problem: internalError, retry: retrySoon, cause: err}
	switch {
	case errors.Is(err, cache.ErrNotStored):
		f.problem = notStored
	case errors.Is(err, page.ErrOverloaded):
		f.problem = originBusy
	case errors.Is(err, page.ErrTimeout), errors.Is(err, cache.ErrFillTimeout), errors.Is(err, context.DeadlineExceeded):
		if f.problem = originSlow; q.Search != "" {
			f.problem = searchSlow
		}
	case errors.Is(err, page.ErrUnavailable), errors.Is(err, context.Canceled):
		f.problem = originDown
	case errors.Is(err, page.ErrNotAllowed), errors.Is(err, page.ErrSchema): // a grant or a table is missing; for the client it is an outage
		f.problem = originClosed
	}
	return f
}

// unreadableProblem returns the problem for a request that fasthttp could not read.
func unreadableProblem(err error) *problem {
	var small *fasthttp.ErrSmallBuffer
	var network net.Error
	switch {
	case errors.As(err, &small):
		return headersTooLarge
	case errors.As(err, &network) && network.Timeout():
		return tooSlow
	}
	return badRequest
}
