package cache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/changefeed"
)

// A flight may take longer than a page lives. Who asks while it is under way
// must not be brought a page that was read before it asked and is too old.
func TestALateJoinerIsNotBroughtAPageThatIsTooOldForIt(t *testing.T) {
	virtual(t, func(t *testing.T, c *Cache) {
		const slow = ttl + time.Second
		database := "old"
		reads := Fill{Primary: func(ctx context.Context, run string) (FillResult, error) {
			seen := database
			time.Sleep(slow)
			return FillResult{Body: []byte(seen)}, nil
		}}
		first := make(chan Result, 1)
		go func() {
			r, err := c.Forward(keyOf("q"), changefeed.List{}, reads)
			if err != nil {
				t.Error(err)
			}
			first <- r
		}()
		time.Sleep(slow - 100*time.Millisecond)
		synctest.Wait()
		database = "new" // committed, and acknowledged
		late, err := c.Forward(keyOf("q"), changefeed.List{}, Fill{Primary: func(context.Context, string) (FillResult, error) {
			return FillResult{Body: []byte(database)}, nil
		}})
		if err != nil || string(late.Entry.Body) != "new" {
			t.Errorf("the late one was brought %v, %v", late, err)
		}
		if r := <-first; string(r.Entry.Body) != "old" {
			t.Errorf("the first one was brought %q", r.Entry.Body)
		}
	})
}
