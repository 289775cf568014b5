package edge

import (
	"context"
	"errors"
	"fmt"

	"listedge/cache"
	"listedge/cache/freshness"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/origin"
)

// forward finds a page that is not in memory.
func (s *Server) forward(x *exchange) (cache.Result, error) {
	control := parseCacheControl(x.headers.control)
	if control.onlyIfCached {
		return s.cache.Stored(x.key, listOf(&x.query), s.placeOf(&x.query))
	}
	list, fill := s.fillOf(x, x.query)
	if control.noCache {
		return s.cache.Bypass(x.key, list, fill)
	}
	return s.cache.Forward(x.key, list, fill)
}

// fillOf returns the list of a query, and how its page is read. The query is a copy,
// because a fill may outlive the request that began it.
func (s *Server) fillOf(x *exchange, q origin.Query) (changefeed.List, cache.Fill) {
	fill := cache.Fill{Compress: acceptsGzip(x.headers.encoding), Queried: x.client.usage.Queried, Primary: func(ctx context.Context, run string) (cache.FillResult, error) {
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
	return changefeed.List{Workspace: q.Workspace, Collection: q.Collection}
}

// prefetchNext reads the next page in the background for a client that follows cursors,
// unless the database is busy. It reads nothing after a joined page: the next page can
// mostly be joined, too, and then costs no query.
func (s *Server) prefetchNext(x *exchange) {
	if x.result.Joined || x.result.Err != nil || !x.result.Entry.ClaimNextPrefetch() || s.origin.Busy() {
		return
	}
	q := x.query
	var err error
	if q.After, err = q.ParseCursor([]byte(x.result.Entry.Next)); err != nil {
		return // another version of the program, with other cursors, has made the page
	}
	list, fill := s.fillOf(x, q)
	s.cache.PrefetchNext(appendPageKey(nil, &q, nil), list, fill)
}

func fillResult(q *origin.Query, p origin.Page, err error) (cache.FillResult, error) {
	return cache.FillResult{Body: p.Body, Next: p.NextCursor, Snapshot: p.Snapshot, Run: p.Run, Server: p.Timeline, LSN: p.LSN, Extent: extentOf(q, p.Shown),
		Query: cache.Span{Began: p.Began, Took: p.Took}}, err
}

// placeOf returns where the query's page is in its list, so that it can be joined from
// others. It returns nil if changes are not followed, because no page is joined then.
func (s *Server) placeOf(q *origin.Query) *cache.Place {
	if s.cache.Mode() == cache.ModeTTL {
		return nil
	}
	return &cache.Place{List: cache.AppendKey(nil, q.Workspace, q.AppendScope(nil)),
		Begin: *extentOf(q, &origin.Shown{}), Limit: q.Limit, Rows: pageRows{*q}}
}

// pageRows implements cache.Rows.
type pageRows struct{ query origin.Query }

func (r pageRows) Starts(starts []uint32, body []byte) []uint32 {
	return origin.AppendRows(starts, body)
}

func (r pageRows) Position(row []byte) freshness.Bound {
	p, ok := origin.PositionAfterRow(row, r.query.Sort)
	if !ok {
		return freshness.Bound{}
	}
	return boundOf(&p)
}

func (r pageRows) Join(parts [][]byte, more bool) (body []byte, next string, ok bool) {
	page, ok := r.query.Join(parts, more)
	return page.Body, page.NextCursor, ok
}

// extentOf returns which rows of the list the page shows; nil = not known. It depends on
// each field of the query that selects or orders rows: see TestEachFieldOfAQueryIsHandled.
func extentOf(q *origin.Query, shown *origin.Shown) *freshness.Extent {
	if shown == nil {
		return nil
	}
	e := &freshness.Extent{
		Order: q.Sort, Collection: q.Collection, Filter: q.Filter, Search: lists.Fold(q.Search),
		After: boundOf(&q.After), End: boundOf(&shown.End), Tags: make([]uint32, len(shown.IDs)),
	}
	for i, id := range shown.IDs {
		e.Tags[i] = freshness.Tag(id)
	}
	return e
}

// boundOf converts a position of the origin; one that is not set is an end of the list.
func boundOf(p *origin.Position) freshness.Bound {
	if !p.Set {
		return freshness.Bound{Kind: freshness.Open}
	}
	return freshness.Bound{Kind: freshness.At, CreatedAt: p.CreatedAt, NameKey: p.Name, ID: p.ID}
}
