package e2e

import (
	"math/rand/v2"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/internal/lists"
	"listedge/origin"
)

// The queries of the page oracle, as a test makes them and as a client writes them.

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

var (
	searches = []string{"", "", "", "", "a", "ab", "abc", "b1", "äb", "чай"}
	limits   = []int{1, 1, 2, 3, 3, 5, 8, 20, 50, 100}
)

// randomQuery is the first page of any list, or a page from any position on.
func randomQuery(r *rand.Rand, workspace uuid.UUID) origin.Query {
	q := origin.Query{Workspace: workspace, Collection: pick(r, lists.All), Limit: pick(r, limits), Search: pick(r, searches)}
	q.Sort = pick(r, q.Collection.Orders())
	for _, f := range q.Collection.Filters() {
		if r.IntN(2) == 0 {
			q.Filter |= pick(r, f.Values).Flag
		}
	}
	if r.IntN(3) == 0 {
		q.After = (&lists.Row{ID: randomID(r), NameKey: lists.NameKey(randomName(r)), CreatedAt: randomTime(r).UnixMicro()}).Position(q.Sort)
	}
	return q
}

func randomID(r *rand.Rand) (id uuid.UUID) {
	for i := range id {
		id[i] = byte(r.Uint32())
	}
	return id
}

// addressOf is the query as a client writes it.
func addressOf(q *origin.Query) string {
	v := url.Values{"limit": {strconv.Itoa(q.Limit)}, "sort": {q.Sort.String()}}
	for _, f := range q.Collection.Filters() {
		for _, value := range f.Values {
			if q.Filter&value.Flag != 0 {
				v.Set(f.Parameter, value.Name)
			}
		}
	}
	if q.Search != "" {
		v.Set("search", q.Search)
	}
	if q.After != "" {
		v.Set("cursor", string(q.AppendCursor(nil)))
	}
	return "/v1/" + q.Collection.String() + "?" + v.Encode()
}

// keyOf is the key of the query's page in a cache.
func keyOf(q *origin.Query) []byte {
	return cache.AppendKey(nil, q.Workspace, q.AppendScope(nil), []byte{byte(q.Limit)}, []byte(q.After))
}
