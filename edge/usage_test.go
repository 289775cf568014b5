package edge

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/internal/list/listtest"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// writtenUsage keeps the sums that are written.
type writtenUsage usage.Counts

func (w *writtenUsage) write(_ context.Context, _ uuid.UUID, _ int64, rows []*usage.Row) error {
	for _, row := range rows {
		(*usage.Counts)(w).Add(row.Counts)
	}
	return nil
}

// Every response to a valid key is counted, whatever its status, with its body as it is
// sent. Responses to other keys are not.
func TestUsageCountsWhatIsAnswered(t *testing.T) {
	row := strings.Repeat("{}", 4000)
	for _, c := range []struct {
		name, method, target string
		headers              []string
		status               int
		counted              bool
		notModified          uint64
	}{
		{"page", "GET", theTarget, nil, 200, true, 0},
		{"gzip", "GET", theTarget, []string{"Accept-Encoding", "gzip"}, 200, true, 0},
		{"HEAD", "HEAD", theTarget, nil, 200, true, 0},
		{"not modified", "GET", theTarget, []string{"If-None-Match", cache.TagOf([]byte(bodyOf(row))).String()}, 304, true, 1},
		{"wrong parameter", "GET", "/v1/items?color=red", nil, 400, true, 0},
		{"If-Match", "GET", theTarget, []string{"If-Match", `"x"`}, 412, true, 0},
		{"no scope", "GET", "/v1/contacts", nil, 403, true, 0},
		{"another key", "GET", theTarget, []string{"X-API-Key", "lk_x"}, 401, false, 0},
		{"no such path", "GET", "/v1/orders", nil, 404, false, 0},
		{"wrong method", "POST", theTarget, nil, 405, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := hitServer(t, row)
			entry := must(s.Keys.Authenticate(time.Now(), []byte(aKey), new(apikey.LastKey), func() bool { return false }))
			entry.Key.Scopes = 1 << listtest.Items.Number
			var sum writtenUsage
			r := usage.Start(sum.write)
			entry.Value.usage = r.Counter(usage.Key{})
			if len(c.headers) == 0 || c.headers[0] != "X-API-Key" {
				c.headers = append(c.headers, "X-API-Key", aKey)
			}
			got := ask(t, s, c.method, c.target, c.headers...)
			if got.Status != c.status {
				t.Fatalf("%+v", got)
			}
			must(0, r.Close(t.Context()))
			want := writtenUsage{}
			if c.counted {
				want = writtenUsage{Requests: 1, NotModified: c.notModified, Bytes: uint64(len(got.Body))}
			}
			if sum != want {
				t.Errorf("%+v, want %+v", sum, want)
			}
		})
	}
}
