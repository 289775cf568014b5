package cache

import (
	"errors"
	"testing"
	"testing/synctest"
)

// Of all who ask at once one looks; who asks later looks again.
func TestOneLooksForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		looked := 0
		release := make(chan struct{})
		look := func() (Result, error) {
			looked++
			<-release
			return Result{Entry: &Entry{Next: "found"}}, nil
		}
		found := make(chan Result)
		for range 5 {
			go func() {
				r, err := f.do("page", look)
				if err != nil {
					t.Error(err)
				}
				found <- r
			}()
		}
		synctest.Wait() // all of them wait
		if _, first := f.join("another page"); !first {
			t.Error("waits for another page's look-up")
		}
		close(release)
		for range 5 {
			if r := <-found; r.Entry == nil || r.Entry.Next != "found" {
				t.Errorf("%+v", r)
			}
		}
		if looked != 1 {
			t.Errorf("%d looked", looked)
		}
		if _, first := f.join("page"); !first {
			t.Error("what has landed is still waited for")
		}
	})
}

// A look-up that panics is an error for all who wait: nobody waits for ever.
func TestALookUpThatPanicsIsAnError(t *testing.T) {
	var f flights
	if _, err := f.do("entry", func() (Result, error) { panic("on the way") }); !errors.Is(err, errPanic) {
		t.Errorf("the one that panics: %v", err)
	}
	if r, err := f.do("entry", func() (Result, error) { return Result{Collapsed: true}, nil }); err != nil || !r.Collapsed {
		t.Errorf("the next one: %+v, %v", r, err)
	}
}
