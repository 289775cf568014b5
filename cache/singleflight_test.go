package cache_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/lists"
	"listedge/internal/page"
)

// panics is a page whose cursor cannot be made.
type panics struct{ *view }

func (panics) Frame(*lists.Row, bool) (head, end, next string) { panic("on the way") }

func TestALookUpThatPanicsIsAnError(t *testing.T) {
	virtual(t, func(t *testing.T, c *cache.Cache) {
		fill := of(keyOf("q"), brings("page"))
		fill.View = panics{pageOf(keyOf("q"))}
		if r, err := c.Forward(keyOf("q"), fill); err == nil || !strings.Contains(err.Error(), "on the way") {
			t.Errorf("%+v, %v", r, err)
		}
		want{body: "page", source: cache.Origin}.check(t, forward(t, c, keyOf("q"), brings("page")), nil)
	})
}

// A flight may take longer than a page lives. A request that joins it late must not get an
// entry that was read before the request and is too old.
func TestALateRequestDoesNotGetAnEntryThatIsTooOldForIt(t *testing.T) {
	virtual(t, func(t *testing.T, c *cache.Cache) {
		const slow = ttl + time.Second
		database := "old"
		reads := cache.Fill{Primary: func(ctx context.Context, run string) (page.Read, error) {
			seen := database
			boottimetest.Pass(slow)
			return shows(seen), nil
		}}
		first := make(chan cache.Result, 1)
		go func() {
			r, err := ask(c, keyOf("q"), reads)
			if err != nil {
				t.Error(err)
			}
			first <- r
		}()
		boottimetest.Pass(slow - 100*time.Millisecond)
		synctest.Wait()
		database = "new" // committed, and acknowledged
		late, err := ask(c, keyOf("q"), cache.Fill{Primary: func(context.Context, string) (page.Read, error) {
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
