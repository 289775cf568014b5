package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
)

// lookUp finds the page: in memory, or by a fill.
func (s *Server) lookUp(x *exchange) failure {
	x.key = appendPageKey(x.key[:0], &x.query, x.scratch[:0])
	control := parseCacheControl(x.headers.control)
	waited := x.decision.Source == limiter.SourceRedis || x.decision.Source == limiter.SourceLocalFallback
	hit := x.hit && !waited // what was fresh before the limit waited may be stale by now
	if !control.noCache && !hit {
		x.result, hit = s.cache.Hit(x.key, x.now)
		if s.timePhases {
			x.endPhase(phaseMemory)
		}
	}
	if !hit {
		var err error
		x.result, err = s.forward(x, control)
		x.endPhase(phaseForward)
		if err != nil {
			s.returnToken(x)
			return failure{problem: lookUpProblem(err), retry: retrySoon, cause: err}
		}
	}
	s.countLookUp(x)
	return failure{}
}

// revalidate finds out whether memory answers 304, which costs no token: before one is
// taken, so that many such requests at once do not refuse one another. A request with
// a cursor may cost a query for the page after, and a rate of 0 admits nothing.
func (s *Server) revalidate(x *exchange) bool {
	if len(x.headers.noneMatch) == 0 || len(x.headers.match) > 0 || parseCacheControl(x.headers.control).noCache {
		return false
	}
	q := x.query
	if s.parse(x).problem != nil || x.query.After.Set {
		x.query = q
		return false
	}
	x.key = appendPageKey(x.key[:0], &x.query, x.scratch[:0])
	x.result, x.hit = s.cache.Hit(x.key, x.now)
	decision := limiter.Decision{}
	if x.hit && x.result.Local && matchesETag(x.headers.noneMatch, x.result.Entry.ETag[:]) {
		decision = s.limiter.Peek(x.now, x.client.bucket, x.client.workspaceBucket)
	}
	if !decision.Allowed {
		x.query = q
		return false
	}
	s.countLookUp(x)
	x.free, x.limited, x.decision = true, true, decision
	return true
}

// countLookUp notes where the page came from.
func (s *Server) countLookUp(x *exchange) {
	var tier metrics.Tier
	switch {
	case x.result.Err != nil:
		tier, x.outcome = metrics.TierStale, metrics.OutcomeStale
	case x.result.Source == cache.Memory:
		tier, x.outcome = metrics.TierMemory, metrics.OutcomeMemory
	case x.result.Source == cache.Redis:
		tier, x.outcome = metrics.TierRedis, metrics.OutcomeRedis
	default:
		tier, x.outcome = metrics.TierOrigin, metrics.OutcomeOrigin
	}
	x.conn.stripe.LookedUp(tier, x.result.Collapsed)
}

// forward finds a page that is not in memory.
func (s *Server) forward(x *exchange, control cacheControl) (cache.Result, error) {
	if control.onlyIfCached {
		if control.noCache { // no page can be both
			return cache.Result{Local: true}, cache.ErrNotStored
		}
		return s.cache.Stored(x.key, listOf(&x.query), s.placeOf(&x.query))
	}
	list, fill := s.fillOf(x, x.query)
	if control.noCache {
		return s.cache.Bypass(x.key, list, fill)
	}
	return s.cache.Forward(x.key, list, fill)
}

// fillOf says how the page of a query is read, and which list it is of. The query
// is a copy: a fill may outlive the request that began it.
func (s *Server) fillOf(x *exchange, q origin.Query) (changefeed.List, cache.Fill) {
	fill := cache.Fill{Compress: acceptsGzip(x.headers.encoding), Primary: func(ctx context.Context, run string) (cache.FillResult, error) {
		page, err := s.origin.Fetch(ctx, q, run)
		if errors.Is(err, origin.ErrWrongServer) {
			err = fmt.Errorf("%w: %w", cache.ErrWrongServer, err)
		}
		return fillResult(&q, page, err)
	}}
	fill.Place = s.placeOf(&q)
	if s.origin.HasStandbys() {
		fill.Standby = func(ctx context.Context, n cache.Requirement) (cache.FillResult, error) {
			page, err := s.origin.FetchFromStandby(ctx, q, origin.Needed(n))
			return fillResult(&q, page, err)
		}
	}
	return listOf(&q), fill
}

func listOf(q *origin.Query) changefeed.List {
	return changefeed.List{Workspace: q.Workspace, Collection: collections[q.Collection]}
}

// checkMatch is If-Match (RFC 9110, 13.1.1), which compares strongly: the weak
// ETag of a page matches no tag, so only * matches, and it matches every page. It
// comes before If-None-Match. If-Unmodified-Since and If-Modified-Since must be
// ignored (13.1.4, 13.1.3), because a page has no modification date.
func (s *Server) checkMatch(x *exchange) failure {
	if lines := x.headers.match; len(lines) == 0 || len(lines) == 1 && string(bytes.TrimSpace(lines[0])) == "*" {
		return failure{}
	}
	s.returnToken(x)
	return failure{problem: etagMismatch}
}

// prefetchNext reads the next page in the background, of a client that reads page
// after page by cursors, unless the database is busy. Behind a page that was joined the
// next one mostly can be, too: then it costs no query, and is not read ahead.
func (s *Server) prefetchNext(x *exchange) {
	if !x.query.After.Set || x.result.Joined || x.result.Err != nil || !x.result.Entry.ClaimNextPrefetch() || s.origin.Busy() {
		return
	}
	q := x.query
	var err error
	if q.After, err = q.ParseCursor([]byte(x.result.Entry.Next)); err != nil {
		return // the page is of a version that writes other cursors
	}
	list, fill := s.fillOf(x, q)
	x.nextPrefetched = s.cache.PrefetchNext(appendPageKey(nil, &q, nil), list, fill)
}

func fillResult(q *origin.Query, p origin.Page, err error) (cache.FillResult, error) {
	return cache.FillResult{Body: p.Body, Next: p.NextCursor, Snapshot: p.Snapshot, Run: p.Incarnation, Server: p.Server, LSN: p.LSN, Extent: extentOf(q, p.Shown),
		Query: cache.Span{Began: p.Began, Took: p.Took}}, err
}

// collections names the origin's collections in the log of changes.
var collections = [...]changefeed.Collection{origin.Items: changefeed.Items, origin.Contacts: changefeed.Contacts}

// appendPageKey appends the cache key of a query's page: everything the page
// depends on, and nothing else. scratch is for its parts.
func appendPageKey(dst []byte, q *origin.Query, scratch []byte) []byte {
	scope := q.AppendScope(scratch)
	limit := append(scope[len(scope):], byte(q.Limit))
	return cache.AppendKey(dst, q.Workspace, scope, limit, q.AppendPosition(limit[len(limit):]))
}
