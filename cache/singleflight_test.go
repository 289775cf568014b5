package cache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/lists"
)

// panics is a page whose cursor cannot be made.
type panics struct{ *page }

func (panics) Frame(*lists.Row, bool) (head, end, next string) { panic("on the way") }

func TestALookUpThatPanicsIsAnError(t *testing.T) {
	virtual(t, func(t *testing.T, c *Cache) {
		fill := brings("page").of(keyOf("q"))
		fill.View = panics{pageOf(keyOf("q"))}
		if r, err := c.Forward(keyOf("q"), fill); !errors.Is(err, errPanic) {
			t.Errorf("%+v, %v", r, err)
		}
		want{body: "page", source: Origin}.check(t, forward(t, c, keyOf("q"), brings("page")), nil)
	})
}

// A flight may take longer than a page lives. A request that joins it late must not get an
// entry that was read before the request and is too old.
func TestALateRequestDoesNotGetAnEntryThatIsTooOldForIt(t *testing.T) {
	virtual(t, func(t *testing.T, c *Cache) {
		const slow = ttl + time.Second
		database := "old"
		reads := Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
			seen := database
			boottimetest.Pass(slow)
			return shows(seen), nil
		}}
		first := make(chan Result, 1)
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
		late, err := ask(c, keyOf("q"), Fill{Primary: func(context.Context, string) (FillResult, error) {
			return shows(database), nil
		}})
		if err != nil || late.Entry.text() != "new" {
			t.Errorf("the late one was brought %v, %v", late, err)
		}
		if r := <-first; r.Entry.text() != "old" {
			t.Errorf("the first one was brought %q", r.Entry.text())
		}
	})
}
