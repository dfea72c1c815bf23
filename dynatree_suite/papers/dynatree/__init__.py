"""DynaTree, the first paper: its published code's differences, switch by switch; and the texts of both papers."""
