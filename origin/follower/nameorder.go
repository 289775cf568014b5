package follower

// nameOrder gives names their keys; the zero nameOrder gives none.
type nameOrder struct{}

func (o *nameOrder) digest() uint32 { return 0 }

func (o *nameOrder) key(string) string { return "" }
