package edge

import (
	"listedge/cache"
	"listedge/cache/freshness"
	"listedge/origin"
)

// placeOf returns where the query's page is in its list, so that it can be joined from
// others. It returns nil if changes are not followed, because no page is joined then.
func (s *Server) placeOf(q *origin.Query) *cache.Place {
	if s.cache.Mode() == cache.ModeTTL {
		return nil
	}
	r := &pageRows{query: *q}
	if q.Sort == origin.ByName {
		r.names = s.origin.NameOrder()
	}
	return &cache.Place{List: cache.AppendKey(nil, q.Workspace, q.AppendScope(nil)),
		Begin: *extentOf(q, &origin.Shown{Names: r.names}), Limit: q.Limit, Rows: r}
}

// pageRows implements cache.Rows.
type pageRows struct {
	query origin.Query
	names *origin.NameOrder // nil = not known, or not needed
}

func (r *pageRows) Starts(starts []uint32, body []byte) []uint32 {
	return origin.AppendRows(starts, body)
}

func (r *pageRows) Position(row []byte) freshness.Bound {
	p, ok := origin.PositionAfterRow(row, r.query.Sort)
	if !ok {
		return freshness.Bound{}
	}
	return boundOf(&p, r.names)
}

func (r *pageRows) Join(parts [][]byte, more bool) (body []byte, next string, ok bool) {
	page, ok := r.query.Join(parts, more)
	return page.Body, page.NextCursor, ok
}
