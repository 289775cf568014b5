package fleet

// Age lets the time pass for which a refused node waits.
func (c *Claim) Age() { c.vacant = c.vacant.Add(-claimLife) }
