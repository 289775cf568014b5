package edge

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/internal/lists"
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
	const page = "/v1/items?limit=20&sort=name&type=goods&stock=low"
	body := `{"data":[` + strings.Repeat("{}", 4000) + `]`
	for _, c := range []struct {
		name, method, target string
		headers              []string
		status               int
		counted              bool
		notModified          uint64
	}{
		{"page", "GET", page, nil, 200, true, 0},
		{"gzip", "GET", page, []string{"Accept-Encoding", "gzip"}, 200, true, 0},
		{"HEAD", "HEAD", page, nil, 200, true, 0},
		{"not modified", "GET", page, []string{"If-None-Match", cache.TagOf([]byte(body)).String()}, 304, true, 1},
		{"wrong parameter", "GET", "/v1/items?color=red", nil, 400, true, 0},
		{"If-Match", "GET", page, []string{"If-Match", `"x"`}, 412, true, 0},
		{"no scope", "GET", "/v1/contacts", nil, 403, true, 0},
		{"another key", "GET", page, []string{"X-API-Key", "lk_x"}, 401, false, 0},
		{"no such path", "GET", "/v1/orders", nil, 404, false, 0},
		{"wrong method", "POST", page, nil, 405, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, ctx := hitServer(t, body)
			entry := must(s.Keys.Authenticate([]byte(aKey), func() bool { return false }))
			entry.Key.Scopes = 1 << lists.Items
			var sum writtenUsage
			r := usage.Start(sum.write)
			entry.Value.usage = r.Counter(usage.Key{})
			ctx.Request.Header.SetMethod(c.method)
			ctx.Request.SetRequestURI(c.target)
			for i := 0; i < len(c.headers); i += 2 {
				ctx.Request.Header.Set(c.headers[i], c.headers[i+1])
			}
			got := answerTo(t, s, ctx)
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
