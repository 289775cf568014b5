package edge

import (
	"context"
	"errors"

	"listedge/cache"
	"listedge/origin"
)

// problem is a kind of error answer. This file is the one place where an error
// gets its code, its status and its message.
type problem struct {
	code    string
	status  int
	message string
}

var (
	badRequest    = &problem{"REQUEST_FAILED", 400, "The request could not be read."}
	wrongMethod   = &problem{"REQUEST_FAILED", 405, "Only GET and HEAD are answered here."}
	tooSlow       = &problem{"REQUEST_FAILED", 408, "The request took too long to arrive."}
	bodyTooLarge  = &problem{"REQUEST_FAILED", 413, "A list request has no body."}
	headTooLarge  = &problem{"REQUEST_FAILED", 431, "The request's header is too large."}
	invalid       = &problem{"VALIDATION_ERROR", 400, "Some parameters are not valid."}
	keyMissing    = &problem{"UNAUTHORIZED", 401, "Send your API key in the X-API-Key header, once."}
	keyMalformed  = &problem{"UNAUTHORIZED", 401, "This is not an API key; look for a typing error."}
	keyRefused    = &problem{"UNAUTHORIZED", 401, "This API key is not valid."}
	scopeMissing  = &problem{"FORBIDDEN", 403, "This API key may not read this collection."}
	suspended     = &problem{"FORBIDDEN", 403, "This workspace is suspended."}
	notFound      = &problem{"NOT_FOUND", 404, "There is nothing at this address."}
	rateLimited   = &problem{"RATE_LIMITED", 429, "Too many requests; wait as long as Retry-After says."}
	authLimited   = &problem{"RATE_LIMITED", 429, "Too many requests with invalid API keys; wait as long as Retry-After says."}
	keysAway      = &problem{"SERVICE_UNAVAILABLE", 503, "API keys cannot be checked at the moment."}
	originAway    = &problem{"SERVICE_UNAVAILABLE", 503, "The database cannot be reached at the moment."}
	originBusy    = &problem{"SERVICE_UNAVAILABLE", 503, "Too many queries are waiting; try again shortly."}
	originSlow    = &problem{"SERVICE_UNAVAILABLE", 503, "The query took too long; try again or narrow it."}
	tooManyConns  = &problem{"SERVICE_UNAVAILABLE", 503, "Too many connections."}
	internalError = &problem{"INTERNAL_ERROR", 500, "Something went wrong here; the request id tells us where to look."}
)

// retrySoon, in seconds, is the Retry-After of a 503: what is away is asked
// again after about a second.
const retrySoon = 1

// lookUpProblem tells what a failed look-up of a page is to the client.
func lookUpProblem(err error) *problem {
	switch {
	case errors.Is(err, origin.ErrOverloaded):
		return originBusy
	case errors.Is(err, origin.ErrTimeout), errors.Is(err, cache.ErrFillTimeout), errors.Is(err, context.DeadlineExceeded):
		return originSlow
	case errors.Is(err, origin.ErrUnavailable), errors.Is(err, context.Canceled):
		return originAway
	}
	return internalError
}
