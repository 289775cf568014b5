package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/lists"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
)

// TestEveryCachedPageEqualsOneReadAnew runs the page oracle for a few seconds on each kind of
// fleet. `make soak` runs it for longer.
func TestEveryCachedPageEqualsOneReadAnew(t *testing.T) {
	t.Parallel()
	comparePages(t, uint64(time.Now().UnixNano()), pagesFor)
}

// comparePages runs the page oracle for this long on each kind of fleet, one after the other.
func comparePages(t *testing.T, seed uint64, d time.Duration) {
	t.Logf("seed %d", seed)
	t.Run("memory", func(t *testing.T) {
		o := newPageOracle(t, seed, database(t))
		o.start(t)
		o.run(t, d)
	})
	t.Run("Redis", func(t *testing.T) {
		o := newPageOracle(t, seed+1, database(t))
		redis := sandboxtest.Redis(t).URL()
		o.start(t, "--redis-url", redis)
		o.start(t, "--redis-url", redis)
		o.run(t, d)
	})
	t.Run("a standby", func(t *testing.T) {
		primary, url := privateDatabase(t)
		standby := sandboxtest.Standby(t, primary, map[string]string{"recovery_min_apply_delay": fmt.Sprintf("%dms", standbyDelay.Milliseconds())})
		o := newPageOracle(t, seed+2, url)
		redis := sandboxtest.Redis(t).URL()
		for range 2 {
			o.start(t, "--redis-url", redis, "--replica-url", standby.URL("listedge"))
		}
		o.run(t, d)
	})
}

// standbyDelay is how far the standby is behind: less than the writers' pauses.
const standbyDelay = 20 * time.Millisecond

// The queries of the page oracle, as a test makes them and as a client writes them.

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

var (
	searches = []string{"", "", "", "", "a", "ab", "abc", "b1", "äb", "чай"}
	limits   = []int{1, 1, 2, 3, 3, 5, 8, 20, 50, 100}
)

// randomQuery is the first page of any list, or a page from any position on.
func randomQuery(r *rand.Rand, workspace uuid.UUID) page.Query {
	q := page.Query{Workspace: workspace, Collection: pick(r, lists.All), Limit: pick(r, limits), Search: pick(r, searches)}
	q.Sort = pick(r, q.Collection.Orders())
	for _, f := range q.Collection.Filters() {
		if r.IntN(2) == 0 {
			q.Filter |= pick(r, f.Values).Flag
		}
	}
	if r.IntN(3) == 0 {
		q.After = (&lists.Row{ID: randomID(r), CreatedAt: randomTime(r).UnixMicro()}).SetTexts(lists.NameKey(randomName(r)), "").Position(q.Sort)
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
func addressOf(q *page.Query) string {
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
