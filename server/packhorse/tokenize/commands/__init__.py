"""The command that turns text, chats and pairs into token files."""
