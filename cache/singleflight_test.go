package cache_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/page"
)

func TestALookUpThatPanicsIsAnError(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		impossible := queryOf("q")
		impossible.Limit = -1
		if r, err := ask(c, impossible, brings("page")); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%+v, %v", r, err)
		}
		want{body: "page", source: cache.Origin}.check(t, forward(t, c, queryOf("q"), brings("page")), nil)
	})
}

// A flight may take longer than a page lives. A request that joins it late must not get an
// entry that was read before the request and is too old.
func TestALateRequestDoesNotGetAnEntryThatIsTooOldForIt(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		const slow = ttl + time.Second
		database := "old"
		reads := origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
			seen := database
			boottimetest.Pass(slow)
			return shows(seen), nil
		}}
		first := make(chan cache.Result, 1)
		go func() {
			r, err := ask(c, queryOf("q"), reads)
			if err != nil {
				t.Error(err)
			}
			first <- r
		}()
		boottimetest.Pass(slow - 100*time.Millisecond)
		synctest.Wait()
		database = "new" // committed, and acknowledged
		late, err := ask(c, queryOf("q"), origin{Primary: func(context.Context, string) (page.Read, error) {
			return shows(database), nil
		}})
		if err != nil || text(late.Entry) != "new" {
			t.Errorf("the late one was brought %v, %v", late, err)
		}
		if r := <-first; text(r.Entry) != "old" {
			t.Errorf("the first one was brought %q", text(r.Entry))
		}
	})
}
