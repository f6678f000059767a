IF op = 'cancel' THEN
    --> include apply/cancel
ELSIF op = 'amend' THEN
    --> include apply/amend
