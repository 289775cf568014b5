package main

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
	itemTypes    = []origin.Type{origin.AnyType, origin.AnyType, origin.Goods, origin.Services}
	contactTypes = []origin.Type{origin.AnyType, origin.AnyType, origin.Customers, origin.Suppliers}
	searches     = []string{"", "", "", "", "a", "ab", "abc", "b1", "äb", "чай"}
	limits       = []int{1, 1, 2, 3, 3, 5, 8, 20, 50, 100}
)

// randomQuery is the first page of any list, or a page from any position on.
func randomQuery(r *rand.Rand, workspace uuid.UUID) origin.Query {
	q := origin.Query{Workspace: workspace, Collection: origin.Collection(r.IntN(2)), Sort: origin.Sort(r.IntN(2)), Limit: pick(r, limits), Search: pick(r, searches)}
	q.Type = pick(r, contactTypes)
	if q.Collection == origin.Items {
		q.Type, q.Stock = pick(r, itemTypes), origin.Stock(r.IntN(3))
	}
	if r.IntN(3) == 0 {
		q.After = origin.Position{Set: true, ID: randomID(r)}
		if q.Sort == origin.ByName {
			q.After.Name = lists.NameKey(randomName(r))
		} else {
			q.After.CreatedAt = randomTime(r).UnixMicro()
		}
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
	v := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	if q.Sort == origin.ByName {
		v.Set("sort", "name")
	}
	if q.Stock != origin.AnyStock {
		v.Set("stock", [...]string{origin.Tracked: "tracked", origin.Low: "low"}[q.Stock])
	}
	if q.Type != origin.AnyType {
		v.Set("type", [...]string{origin.Goods: "goods", origin.Services: "services", origin.Customers: "customer", origin.Suppliers: "supplier"}[q.Type])
	}
	if q.Search != "" {
		v.Set("search", q.Search)
	}
	if q.After.Set {
		v.Set("cursor", string(q.AppendCursor(nil)))
	}
	return "/v1/" + q.Collection.String() + "?" + v.Encode()
}

// keyOf is the key of the query's page in a cache.
func keyOf(q *origin.Query) []byte {
	return cache.AppendKey(nil, q.Workspace, q.AppendScope(nil), []byte{byte(q.Limit)}, q.AppendPosition(nil))
}
